"""Adapters: rollouts of turngate inside other frameworks, each in a module with the framework's name.

A module imports its framework, so it needs the extra of the same name: pip install 'turngate[trl]'.
"""
