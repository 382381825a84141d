"""The one loop: accumulate → clip → step → log → save. Knows no task."""
