"""What a fine-tuned model can and cannot do, told to whoever decides about it.

outcome                  what is told: plain data, as JSON too      page       all of it as one HTML file
numbers, letters         bins and intervals; room and safety        card       the README.md of a model folder
svg                      the few shapes of charts                   limits     what not to rely on, in sentences
charts, curves, matrix   the charts                                 mistakes   which ones to show, and how
"""
