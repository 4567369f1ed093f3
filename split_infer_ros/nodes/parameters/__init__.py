"""The nodes' parameters. Each node has one table; its parameters are declared, checked and documented from it."""
