"""From notebooks to the appendix: papermill, chapters, HTML, PDF."""
