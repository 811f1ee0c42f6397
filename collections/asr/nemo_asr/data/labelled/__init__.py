"""Recordings that belong to a class each: commands, speech or background, speakers."""
