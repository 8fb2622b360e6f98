"""Lockstep on the common task."""

from typing import cast

import torch
from torch import Tensor

from benchmarks.peers.task import Seen, Stored, Task, Weights
from benchmarks.peers.world import ROLE, JointConfig, JointUavMec
from lockstep.core.programs import Captured
from lockstep.core.returns import gae
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.run.config import TrainConfig
from lockstep.run.trainer import Trainer


def learner_config(task: Task, *, audit: bool = True) -> PPOConfig:
    return PPOConfig(
        unit_head="gaussian_clip",
        critic="state",
        actor="mlp",
        hidden=task.hidden,
        lanes=task.lanes,
        steps=task.steps,
        epochs=task.epochs,
        minibatches=task.minibatches,
        lr_actor=task.lr,
        lr_critic=task.lr,
        gae_lambda=task.gae_lambda,
        clip_ratio=task.clip_ratio,
        entropy_weight=task.entropy_weight,
        entropy_per="sum",
        max_grad_norm=task.max_grad_norm,
        audit=audit,
    )


class Ours:
    """A pack of `members` on the task, trained as `lockstep train` trains it."""

    name = "lockstep"
    unbiased = False

    def __init__(
        self,
        task: Task,
        *,
        device: str = "cpu",
        compile: bool = False,
        seed: int = 0,
        members: int = 1,
        audit: bool = True,
    ) -> None:
        self.task = task
        config = TrainConfig(
            world=JointConfig(task=task),
            learner=learner_config(task, audit=audit),
            seeds=tuple(range(seed, seed + members)),
            total_steps=task.batch,
            device=device,  # type: ignore[arg-type]
            compile="on" if compile else "off",
        )
        self.trainer = Trainer(config)
        self.world = cast(JointUavMec, self.trainer.world)
        lanes = members * task.lanes
        self._numbers = torch.rand(lanes, 1, task.action_size, device=device)
        self._play = Captured(self._steps) if device == "cuda" else self._steps

    def weights(self) -> Weights:
        """The first member's weights, in the order in which peers have their layers."""
        learner = cast(PPO, self.trainer.learner)
        policy = dict(learner.policies[ROLE].module.named_parameters())
        critic = dict(learner.critic.module.named_parameters())

        def layer(of: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
            return of[f"{name}.weight"].detach(), of[f"{name}.bias"].detach()

        weight, bias = layer(policy, "head")
        return Weights(
            actor=(
                layer(policy, "encoder.body.0"),
                layer(policy, "encoder.body.2"),
                (weight, bias + 0.5),  # Lockstep adds the middle of [0, 1] to what the head says
            ),
            log_std=policy["log_std.part_all"].detach(),
            critic=tuple(layer(critic, name) for name in ("body.0", "body.2", "head")),
        )

    def step_world(self) -> None:
        self._play()

    @torch.no_grad()
    def _steps(self) -> None:
        for _ in range(self.task.steps):
            self.world.observe(ROLE)
            self.world.state(ROLE)
            self.world.act(ROLE, {"all": self._numbers})
            self.world.advance()

    def collect(self) -> None:
        self.trainer.collect()

    def train(self) -> None:
        self.trainer.update()

    def reward(self) -> float:
        return float(self.trainer.rollout.roles[ROLE].reward.mean())

    def stored(self) -> Stored:
        """A rollout collected now, for every side's `replay`; `replay` after it sees the same."""
        self.trainer.collect()
        rollout = self.trainer.rollout
        rows = rollout.roles[ROLE]
        return Stored(
            obs=rows.obs.features["obs"].squeeze(2).clone(),
            action=rows.action["all"].squeeze(2).clone(),
            reward=rows.reward.squeeze(-1).clone(),
            terminated=rollout.terminated.clone(),
            last_obs=self.world.seen(),
        )

    def replay(self, stored: Stored) -> Seen:
        """What Lockstep made of the rollout that `stored` gave out."""
        rollout = self.trainer.rollout
        rows = rollout.roles[ROLE]
        if not torch.equal(rows.action["all"].squeeze(2), stored.action):
            raise ValueError("replay() must follow stored(), got another rollout in between")
        seen = {
            "log_prob": rows.log_prob.squeeze(-1).clone(),
            "entropy": rows.entropy.squeeze(-1).clone(),
            "value": rows.value.squeeze(-1).clone(),
        }
        advantage = gae(
            rows.reward,
            rows.value,
            rows.next_value,
            rollout.terminated.unsqueeze(-1),
            rollout.truncated.unsqueeze(-1),
            gamma=self.task.discount,
            lam=self.task.gae_lambda,
        ).advantage.squeeze(-1)
        stats = {name: float(x[0]) for name, x in self.trainer.learn().items()}
        entropy = stats[f"train/{ROLE}/entropy"]
        loss = stats[f"train/{ROLE}/policy_loss"] + stats["train/value_loss"]
        return Seen(
            **seen,
            advantage=advantage,
            ratio=stats[f"audit/first/{ROLE}/approx_kl"],
            loss=loss - self.task.entropy_weight * entropy,
            actor_grad_norm=stats[f"train/{ROLE}/grad_norm"],
            critic_grad_norm=stats["train/critic/grad_norm"],
        )
