"""One question a pair of files: its words (.toml) and its trials (.py)."""
