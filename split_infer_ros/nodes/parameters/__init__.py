"""The nodes' parameters. Each node has one table, from which its parameters are declared, checked and documented."""
