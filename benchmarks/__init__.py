"""Every figure of the project, each one command."""
