"""How long a step takes, before it is run: what it has to do in numbers, and models that turn these into seconds."""
