"""The command `luxrelay`: one file a command."""
