"""What a batch is made from: files in many forms, read as rows; every fault is found before anything runs."""
