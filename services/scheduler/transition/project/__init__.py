"""Changes of workspaces, projects and templates, and the project of an experiment."""
