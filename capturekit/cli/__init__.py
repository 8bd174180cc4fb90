"""The command line, the doctor, explanations, the plugin for pytest."""
