from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.capture.privacy import allowed_environment, mask_command_line

SECRET = "s3cr3tV4lue"


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--api-key", SECRET],
        ["train.py", f"--api_key={SECRET}"],
        ["train.py", "--wandb-api-key", SECRET],
        ["train.py", f"WANDB_API_KEY={SECRET}"],
        ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "python"],
        ["train.py", "--hf_token", SECRET],
        ["train.py", f"hub.token={SECRET}"],
        ["train.py", f"+logger.authToken={SECRET}"],
        ["train.py", "--password", SECRET],
        ["train.py", f"-password={SECRET}"],
        ["train.py", f"--data=https://user:{SECRET}@store/x"],
        ["train.py", f"s3://{SECRET}@bucket/x"],
        ["train.py", f"https://store/x?sig=1&token={SECRET}"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["curl", "-H", f"X-Api-Key: {SECRET}"],
        ["bash", "-c", f"export HF_TOKEN={SECRET}; python train.py"],
        ["bash", "-c", f"python train.py --api-key {SECRET} --lr 1"],
        ["bash", "-c", f"python train.py --password '{SECRET} and more {SECRET}'"],
        ["train.py", f"hf_{SECRET * 2}"],
        ["train.py", f'--config={{"api_key": "{SECRET}", "lr": 1}}'],
        ["train.py", "--config", f"{{user: me, password: {SECRET}}}"],
        ["train.py", f"logger.kwargs={{'auth-token': '{SECRET} x'}}"],
        ["train.py", f"--thing=ghp_{SECRET * 2}"],
        ["train.py", f"sk-{SECRET * 2}"],
        ["srun", f"--export=ALL,WANDB_API_KEY={SECRET}", "python"],
        ["docker", "run", f"--env=HF_TOKEN={SECRET}"],
        ["helm", f"--set=replicas=1,db.password={SECRET}"],
        ["train.py", f"--kwargs=[api_key={SECRET}]"],
        ["train.py", f"'--password={SECRET}'"],
        ["train.py", f"logger[0].token={SECRET}"],
        ["train.py", f"--logger={{'a': {{'token': '{SECRET}'}}}}"],
        ["train.py", f'--config={{"api_key": "a\\"{SECRET}", "lr": 1}}'],
        ["train.py", f"--password\u00a0{SECRET}"],
        ["train.py", f"postgres://user:a@{SECRET}@host/db"],
        ["train.py", f"postgres://user:a/{SECRET}@host/db"],
        ["train.py", f"user:{SECRET}@tcp(host:3306)/db"],
        ["train.py", f"PGPASSWORD={SECRET}"],
        ["train.py", f"--db-creds={SECRET}"],
        ["curl", "-u", f"me:{SECRET}"],
        ["curl", f"--user=me:{SECRET}"],
        ["bash", "-c", f"curl -u me:{SECRET} https://x; python train.py"],
        ["aws", "configure", "set", "aws_secret_access_key", SECRET],
        ["train.py", f"pipe:curl -s https://store/x?sv=1&sig={SECRET}"],
        ["train.py", f"https://s3/x?X-Amz-Signature={SECRET}&X-Amz-Date=1"],
        ["train.py", f"--hook=https://hooks.slack.com/services/T0/B0/{SECRET}"],
        ["train.py", f"nvapi-{SECRET * 2}"],
        ["train.py", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"],
    ],
)
def test_no_secret_is_left(words: list[str]) -> None:
    masked = mask_command_line(words)
    assert SECRET not in masked
    assert "***" in masked
    assert masked.startswith(words[0].split("=")[0])


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "--tokenizer", "gpt2", "--max-tokens", "4096", "--lr=1e-4"],
        ["python", "train.py", "--pad-token", "<pad>", "--image_key=img", "--keyword", "x"],
        ["torchrun", "--nproc_per_node=8", "--rdzv-endpoint=host:29400", "train.py"],
        ["python", "-m", "pkg.train", "--data", "s3://bucket/data", "--url=http://host:80/x?y=1"],
        ["bash", "-c", "python train.py --steps 10 && echo done"],
        ["train.py", '--config={"tokenizer": "gpt2", "image_key": "img", "lr": 1}', "a:b", "C:/x"],
        [
            "python",
            "-c",
            "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
        ],
        [
            "docker",
            "run",
            "-u",
            "1000:1000",
            "registry/image:24.05@sha256:0123",
            "--bypass",
            "1",
            "--compat=2",
        ],
        ["python", "-u", "x", "http://host:8080/path/a@2x.png", "tcp://10.0.0.1:29500", "file:///a/b@c"],
        ["git@host.example:org/repo.git", "rank0@host:/p", "--num-tokens", "5", "optim.betas=[0.9,0.95]"],
    ],
)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert mask_command_line(words) == " ".join(words)


def test_an_option_after_a_secret_option_is_no_value() -> None:
    assert mask_command_line(["x", "--token", "--lr", "1"]) == "x --token --lr 1"


def test_endless_command_lines_are_cut() -> None:
    masked = mask_command_line(["python", "x" * 100_000, *["--lr=1"] * 10_000])
    assert len(masked) < 40_000
    assert masked.startswith("python xxx")
    assert masked.endswith(" …")


@given(st.lists(st.text(), max_size=6))
def test_any_command_line_can_be_masked(words: list[str]) -> None:
    assert isinstance(mask_command_line(words), str)


@pytest.mark.parametrize("piece", ["a", "a:", "[a]", "X-", 'a="', "token=", "x://a:b@", " ", "a@", "-u a:"])
def test_no_word_takes_long(piece: str) -> None:
    began = time.thread_time()
    mask_command_line([piece * (4096 // len(piece))] * 4)
    assert time.thread_time() - began < 2


def test_of_the_environment_only_known_harmless_variables_are_taken() -> None:
    taken = allowed_environment(
        {
            "RANK": "3",
            "NCCL_DEBUG": "INFO",
            "SLURM_JOB_ID": "77",
            "WANDB_API_KEY": SECRET,
            "HOME": "/home/me",
            "NCCL_SECRET_TOKEN": SECRET,
            "RANK_SECRET": SECRET,
            "MASTER_ADDR": "10.0.0.1",
        }
    )
    assert taken == {"MASTER_ADDR": "10.0.0.1", "NCCL_DEBUG": "INFO", "RANK": "3", "SLURM_JOB_ID": "77"}
