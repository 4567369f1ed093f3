"""Which memory policy costs least: a machine's constants, a task's overhead under each policy, the choice."""
