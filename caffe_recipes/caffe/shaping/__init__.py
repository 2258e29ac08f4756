"""The rules of `shapes.py`: what each type of layer makes of its bottoms."""
