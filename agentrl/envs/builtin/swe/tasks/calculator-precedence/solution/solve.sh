#!/bin/bash
cd /work/repo && git apply /solution/solution.patch
