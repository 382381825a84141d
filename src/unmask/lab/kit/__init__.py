"""What trials of different questions share."""
