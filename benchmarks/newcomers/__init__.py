"""Twenty small environments, written as newcomers write them and committed before any of them was trained.

At least four each of free text, several tools, copied names, dense rewards and a fixed horizon; none has a recipe.
`python -m benchmarks.authors --of newcomers` trains them under the defaults. They are not to be tuned to what it
prints.
"""
