"""The machine images: versions, steps, and the documents that EC2 Image Builder runs.

Standard library only.
"""
