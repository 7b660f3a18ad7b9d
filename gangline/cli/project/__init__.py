"""Commands about workspaces, projects and templates."""
