"""The program in the sandbox: a judge process with the hidden tests, and a worker process with the submitted code.

The concatenated modules of this package are the program of both processes (`judging.program`); nothing else of agentrl
is there, and any Python from 3.8 on runs it.

The two share a user and a machine and nothing else. The judge reads its job, the tests and a nonce from its standard
input, and no other process can read them (it is undumpable, so the kernel denies the worker access to its memory, its
descriptors and its environment). The tests run in the judge; where they call the solution, the arguments are sent to
the worker and plain data comes back: numbers, text, lists, sets … of the built-in types. So the submitted code never
sees an expected value, and can't return an object that equals everything. It can return wrong values, exit or kill the
judge, but can't forge a verdict without the nonce.

An object that isn't plain data stays in the worker, and the tests get a handle: it can be called, iterated over and
has attributes, and it equals nothing but itself.
"""
