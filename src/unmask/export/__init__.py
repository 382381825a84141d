"""Models for other programs: ONNX and what is made from it, CTranslate2, Marian; compared before they are written."""
