"""Question → experiment → evidence."""
