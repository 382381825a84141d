"""Question → experiment → evidence. For now: the baselines that experiments compare with."""
