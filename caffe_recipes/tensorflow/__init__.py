"""TensorFlow's formats: TFRecords, a Horovod run's commands, rate and log. Needs no TensorFlow. Floor 2."""
