"""TensorFlow's formats: TFRecords, a Horovod run's commands, rates and logs. Needs no TensorFlow. Floor 2."""
