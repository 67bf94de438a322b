"""Sections of a page: each turns loaded records into a piece of HTML."""
