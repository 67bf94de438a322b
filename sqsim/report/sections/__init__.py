"""Sections of a page: each turns records that were read into a piece of HTML."""
