"""The plain front: `gs.fit`, `gs.Trainer`, `gs.Evaluate`, `gs.load`, and callbacks."""
