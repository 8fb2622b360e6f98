"""Stable-Baselines3 PPO on the common task, through its numpy vector interface."""

from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peers.task import Seen, Stored, Task, Weights, copy_linears, grad_norm
from benchmarks.peers.world import JointUavMec, make_world


class NumpyVec(VecEnv):
    """The world as a VecEnv.

    Episodes end by termination, so no `terminal_observation` is looked up by PPO, and none is made.
    """

    def __init__(self, world: JointUavMec) -> None:
        task = world.task
        self.world = world
        super().__init__(
            task.lanes,
            gymnasium.spaces.Box(-np.inf, np.inf, (task.observation_size,), np.float32),
            gymnasium.spaces.Box(0.0, 1.0, (task.action_size,), np.float32),
        )
        self._action = np.zeros((task.lanes, task.action_size), np.float32)

    def reset(self) -> np.ndarray:
        return self.world.seen().cpu().numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self._action = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        numbers = torch.from_numpy(self._action).to(self.world.device)
        obs, reward, ended = self.world.play(numbers)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return obs.cpu().numpy(), reward.cpu().numpy(), ended.cpu().numpy(), infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None) for _ in range(len(self._indices(indices)))]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("lanes of one batch have no attributes of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list:
        raise NotImplementedError("lanes of one batch have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        return [False for _ in self._indices(indices)]

    def _indices(self, indices: Any) -> list[int]:
        return list(self._get_indices(indices))


class Nothing(BaseCallback):
    """Watches nothing, logs nothing."""

    def _on_step(self) -> bool:
        return True


class StableBaselines:
    """Its own rollout buffer, policy class, collection and training; logging goes nowhere."""

    name = "stable-baselines3"
    unbiased = True  # and standardised by minibatch

    def __init__(
        self,
        task: Task,
        weights: Weights,
        *,
        device: str = "cpu",
        compile: bool = False,
        seed: int = 0,
    ) -> None:
        self.task = task
        self.vec = NumpyVec(make_world(task, device=device, compile=compile, seed=seed))
        self.algorithm = PPO(
            "MlpPolicy",
            self.vec,
            learning_rate=task.lr,
            n_steps=task.steps,
            batch_size=task.batch // task.minibatches,
            n_epochs=task.epochs,
            gamma=task.discount,
            gae_lambda=task.gae_lambda,
            clip_range=task.clip_ratio,
            ent_coef=task.entropy_weight,
            vf_coef=task.value_weight,
            max_grad_norm=task.max_grad_norm,
            policy_kwargs={
                "net_arch": {"pi": [task.hidden] * 2, "vf": [task.hidden] * 2},
                "activation_fn": torch.nn.ReLU,
                "optimizer_kwargs": {"eps": task.adam_eps, "fused": True},
            },
            seed=seed,
            device=device,
            verbose=0,
        )
        policy = self.algorithm.policy
        self.actor = torch.nn.ModuleList([policy.mlp_extractor.policy_net, policy.action_net])
        self.critic = torch.nn.ModuleList([policy.mlp_extractor.value_net, policy.value_net])
        copy_linears(self.actor, weights.actor)
        copy_linears(self.critic, weights.critic)
        with torch.no_grad():
            policy.log_std.copy_(weights.log_std)
        self.algorithm.set_logger(configure(folder=None, format_strings=[]))
        self._started = False
        self._callback = Nothing()
        self._callback.init_callback(self.algorithm)
        self._numbers = np.random.default_rng(seed).random(
            (task.lanes, task.action_size), dtype=np.float32
        )

    def step_world(self) -> None:
        for _ in range(self.task.steps):
            self.vec.step(self._numbers)

    def collect(self) -> None:
        self._start()
        buffer = self.algorithm.rollout_buffer
        self.algorithm.collect_rollouts(self.vec, self._callback, buffer, self.task.steps)

    def _start(self) -> None:
        """The first observation, as `learn` sets it before its loop."""
        if not self._started:
            self.algorithm._setup_learn(self.task.batch, self._callback)
            self._started = True

    def train(self) -> None:
        self.collect()
        self.algorithm.train()

    def reward(self) -> float:
        return float(self.algorithm.rollout_buffer.rewards.mean())

    def replay(self, stored: Stored) -> Seen:
        algorithm, policy = self.algorithm, self.algorithm.policy
        buffer = algorithm.rollout_buffer
        starts = np.ones(self.task.lanes, np.float32)
        rows = []
        with torch.no_grad():
            for t in range(self.task.steps):
                obs, action = stored.obs[t], stored.action[t]
                value, log_prob, entropy = policy.evaluate_actions(obs, action)
                rows.append((log_prob, entropy, value.flatten()))
                reward = stored.reward[t].cpu().numpy()
                numbers = action.cpu().numpy()
                buffer.add(obs.cpu().numpy(), numbers, reward, starts, value, log_prob)
                starts = stored.terminated[t].cpu().numpy()
            last = policy.predict_values(stored.last_obs)
        buffer.compute_returns_and_advantage(last_values=last, dones=starts)
        log_prob, entropy, value = (torch.stack(x) for x in zip(*rows, strict=True))
        advantage = torch.from_numpy(buffer.advantages.copy()).to(value.device)
        with torch.no_grad():
            flat = stored.obs.flatten(0, 1), stored.action.flatten(0, 1)
            again = policy.evaluate_actions(*flat)[1].view_as(log_prob)
        algorithm.train()
        return Seen(
            log_prob=log_prob,
            entropy=entropy,
            value=value,
            advantage=advantage,
            ratio=float(((again - log_prob).exp() - 1).abs().max()),
            loss=algorithm.logger.name_to_value["train/loss"],
            actor_grad_norm=grad_norm([*self.actor.parameters(), policy.log_std]),
            critic_grad_norm=grad_norm(self.critic.parameters()),
        )
