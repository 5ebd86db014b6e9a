"""The CNCF's AI conformance requirements as checks with evidence, on any cluster.

`requirements` is the table of what each version asks for, `checks` tries it with real objects in a namespace of its own,
`report` writes the result in the form of the official checklist and as a page.
"""
