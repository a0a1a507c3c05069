"""The script that shows a finding."""
