from threads import one_thread as one_thread  # a fixture for every test here
