"""skrl's PPO on the common task, on device tensors."""

from typing import Any

import gymnasium
import numpy as np
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch.base import Wrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import Tensor, nn

from benchmarks.peers.task import Seen, Stored, Task, Weights, copy_linears, grad_norm, mlp
from benchmarks.peers.world import JointUavMec, make_world


class SkrlEnv(Wrapper):
    """The world as skrl's trainers step an environment."""

    def __init__(self, world: JointUavMec) -> None:
        task = world.task
        self.world = world
        super().__init__(world)
        self._spaces = (
            gymnasium.spaces.Box(-np.inf, np.inf, (task.observation_size,), np.float32),
            gymnasium.spaces.Box(0.0, 1.0, (task.action_size,), np.float32),
        )
        self._never = torch.zeros(task.lanes, 1, dtype=torch.bool, device=world.device)

    num_envs = property(lambda self: self.world.lanes)
    state_space = property(lambda self: None)  # noqa: ARG005
    observation_space = property(lambda self: self._spaces[0])
    action_space = property(lambda self: self._spaces[1])

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        return self.world.seen(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        obs, reward, ended = self.world.play(actions)
        return obs, reward.unsqueeze(-1), ended.unsqueeze(-1), self._never, {}

    def state(self) -> None:
        return None

    def render(self) -> None:
        raise NotImplementedError("the comparison draws nothing")

    def close(self) -> None:
        pass


class Actor(GaussianMixin, Model):
    def __init__(self, env: SkrlEnv, task: Task, weights: Weights) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device=env.device)
        GaussianMixin.__init__(self, clip_actions=False, clip_log_std=True, reduction="sum")
        self.net = mlp(task.observation_size, task.hidden, task.action_size).to(env.device)
        copy_linears(self.net, weights.actor)
        self.log_std = nn.Parameter(weights.log_std.clone().to(env.device))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        del role
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, env: SkrlEnv, task: Task, weights: Weights) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device=env.device)
        DeterministicMixin.__init__(self, clip_actions=False)
        self.net = mlp(task.observation_size, task.hidden, 1).to(env.device)
        copy_linears(self.net, weights.critic)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        del role
        return self.net(inputs["observations"]), {}


class Skrl:
    """Its own agent and memory; the loop makes the calls of skrl's sequential trainer."""

    name = "skrl"
    unbiased = True

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
        torch.manual_seed(seed)
        self.env = SkrlEnv(make_world(task, device=device, compile=compile, seed=seed))
        self.actor = Actor(self.env, task, weights)
        self.critic = Critic(self.env, task, weights)
        config = PPO_CFG(
            rollouts=task.steps,
            learning_epochs=task.epochs,
            mini_batches=task.minibatches,
            discount_factor=task.discount,
            gae_lambda=task.gae_lambda,
            learning_rate=task.lr,
            grad_norm_clip=task.max_grad_norm,
            ratio_clip=task.clip_ratio,
            value_clip=0.0,
            entropy_loss_scale=task.entropy_weight,
            value_loss_scale=task.value_weight,
        )
        config.experiment.write_interval = 0
        config.experiment.checkpoint_interval = 0
        self.agent = PPO(
            models={"policy": self.actor, "value": self.critic},
            memory=RandomMemory(
                memory_size=task.steps, num_envs=task.lanes, device=device, replacement=False
            ),
            observation_space=self.env.observation_space,
            action_space=self.env.action_space,
            device=device,
            cfg=config,
        )
        self.agent.optimizer = torch.optim.Adam(
            [*self.actor.parameters(), *self.critic.parameters()],
            lr=task.lr,
            eps=task.adam_eps,
            fused=True,
        )
        self.agent.init()
        self.agent.enable_training_mode(True)
        self.observations, _ = self.env.reset()
        self._numbers = torch.rand(task.lanes, task.action_size, device=device)

    def step_world(self) -> None:
        for _ in range(self.task.steps):
            self.env.step(self._numbers)

    def collect(self) -> None:
        for _ in range(self.task.steps):
            self._interact()

    def _interact(self) -> None:
        when = {"timestep": 0, "timesteps": 1}
        self.agent.pre_interaction(**when)
        with torch.no_grad():
            actions, _ = self.agent.act(self.observations, None, **when)
            following, rewards, terminated, truncated, infos = self.env.step(actions)
            self.agent.record_transition(
                observations=self.observations,
                states=None,
                actions=actions,
                rewards=rewards,
                next_observations=following,
                next_states=None,
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                **when,
            )
        self.observations = following

    def train(self) -> None:
        for _ in range(self.task.steps):
            self._interact()
            self.agent.post_interaction(timestep=0, timesteps=1)
        self.agent.tracking_data.clear()

    def reward(self) -> float:
        return float(self.agent.memory.get_tensor_by_name("rewards").mean())

    def replay(self, stored: Stored) -> Seen:
        agent = self.agent
        never = torch.zeros_like(stored.terminated[0]).unsqueeze(-1)
        following = [*stored.obs[1:], stored.last_obs]
        log_prob, entropy, value = [], [], []
        with torch.no_grad():
            for t in range(self.task.steps):
                agent.act(stored.obs[t], None, timestep=0, timesteps=1)
                taken = {"observations": stored.obs[t], "taken_actions": stored.action[t]}
                # What was just sampled is not what was stored.
                agent._current_log_prob = self.actor.act(taken)[1]["log_prob"]
                log_prob.append(agent._current_log_prob.squeeze(-1))
                entropy.append(self.actor.get_entropy().squeeze(-1))
                value.append(self.critic.act(taken)[0].squeeze(-1))
                agent.record_transition(
                    observations=stored.obs[t],
                    states=None,
                    actions=stored.action[t],
                    rewards=stored.reward[t].unsqueeze(-1),
                    next_observations=following[t],
                    next_states=None,
                    terminated=stored.terminated[t].unsqueeze(-1),
                    truncated=never,
                    infos={},
                    timestep=0,
                    timesteps=1,
                )
            flat = {
                "observations": stored.obs.flatten(0, 1),
                "taken_actions": stored.action.flatten(0, 1),
            }
            again = self.actor.act(flat)[1]["log_prob"].view(stored.reward.shape)
        before = torch.stack(log_prob)
        agent.update(timestep=0, timesteps=1)
        names = ("Policy", "Value", "Entropy")
        targets = agent.memory.get_tensor_by_name("returns").squeeze(-1)
        return Seen(
            log_prob=before,
            entropy=torch.stack(entropy),
            value=torch.stack(value),
            advantage=targets - torch.stack(value),
            ratio=float(((again - before).exp() - 1).abs().max()),
            loss=sum(agent.tracking_data[f"Loss / {name} loss"][-1] for name in names),
            actor_grad_norm=grad_norm(self.actor.parameters()),
            critic_grad_norm=grad_norm(self.critic.parameters()),
        )
