"""boto3's JSON descriptions of S3, parsed once in a process: each new client would spend 0.1 s on that."""

from __future__ import annotations

import boto3
import botocore.session

__all__ = ["share_s3_models"]


def share_s3_models() -> None:
    """Have every client of this process, from now on, take them from one place."""
    loader = botocore.session.get_session().get_component("data_loader")
    botocore.session.create_loader = lambda *_: loader
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x").close()
