"""`tf.estimator`: a model function, trained, evaluated and exported by roles. Layer: tf1."""
