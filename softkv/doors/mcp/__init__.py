"""A memory for agents, over the Model Context Protocol: tools.py, over memories.py, over reaching.py."""
