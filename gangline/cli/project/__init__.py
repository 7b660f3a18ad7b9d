"""Commands about workspaces, projects and templates.

Start: project.py
"""
