"""Makes the folder of this file the package ``benchmarks``.

Python searches this folder for modules when a benchmark runs, because ``__main__.py`` lies in it. Tests search it too.
The checkout's own folder is not searched: its source tree would hide the installed ``split_infer_ros``. The folders
here have no ``__init__.py``, so that none of them can hide an installed package of the same name.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]
