"""Split inference for ROS 2: a detector's backbone and head on two processors, joined by handles."""

from pkgutil import extend_path

__version__ = "0.1.0"

# Imported from the source tree, the package still finds its generated messages where they are installed.
__path__ = extend_path(__path__, __name__)
