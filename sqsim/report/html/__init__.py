"""HTML, figures and templates."""
