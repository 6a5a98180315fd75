"""Object stores: `driver = s3`. The prepared branch is uploads in parts that are not completed, and a manifest."""
