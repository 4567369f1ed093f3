"""The nodes' parameters: each node has one table, from which its parameters are declared, checked and documented."""
