"""Functions of images, as `gs.image` has them: shapes, sizes, colours, values and file formats."""
