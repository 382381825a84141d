"""Text for pre-training, made once into a folder of tokens that is read without loading it.

inputs    files → documents of sentences          worker, pool   sentences → tokens, on all cores
encode    sentences → tokens, fast                write, draft   shards, in order, resumable
words     where whole words begin                 store          the finished folder, memory-mapped
format    what is in the folder                   build          all of it, in one call
                                                  scale          the same, encoded on a Ray cluster
"""
