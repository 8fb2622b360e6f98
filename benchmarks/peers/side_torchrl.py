"""TorchRL's collector, advantage module, loss and replay buffer on the common task."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Bounded, Composite, LazyTensorStorage, ReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.peers.task import Seen, Stored, Task, Weights, copy_linears, grad_norm, mlp
from benchmarks.peers.world import JointUavMec, make_world

KEPT = ("observation", "action", "action_log_prob", "advantage", "value_target")


class TensorEnv(EnvBase):
    """The world as a batched TorchRL environment.

    The world starts ended lanes by itself, so a reset only tells what they see.
    """

    def __init__(self, world: JointUavMec) -> None:
        task, device = world.task, world.device
        super().__init__(device=device, batch_size=[task.lanes])
        self.world = world
        L = task.lanes
        flag = Binary(n=1, shape=(L, 1), dtype=torch.bool, device=device)
        self.observation_spec = Composite(
            observation=Unbounded(shape=(L, task.observation_size), device=device),
            shape=(L,),
            device=device,
        )
        self.action_spec = Bounded(0.0, 1.0, shape=(L, task.action_size), device=device)
        self.reward_spec = Unbounded(shape=(L, 1), device=device)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), shape=(L,), device=device)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        del tensordict
        running = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        return TensorDict(
            {"observation": self.world.seen(), "done": running, "terminated": running.clone()},
            batch_size=self.batch_size,
            device=self.device,
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        obs, reward, ended = self.world.play(tensordict["action"])
        ended = ended.unsqueeze(-1)
        return TensorDict(
            {
                "observation": obs,
                "reward": reward.unsqueeze(-1),
                "done": ended,
                "terminated": ended.clone(),
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        """The world's histories follow from the keys it was reset with."""


class Gaussian(nn.Module):
    def __init__(self, task: Task, weights: Weights) -> None:
        super().__init__()
        self.net = mlp(task.observation_size, task.hidden, task.action_size)
        copy_linears(self.net, weights.actor)
        self.log_std = nn.Parameter(weights.log_std.clone())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.net(obs)
        return mean, self.log_std.exp().expand_as(mean)


class TorchRL:
    """The usual composition of its parts; advantages are computed once per update."""

    name = "torchrl"
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
        world = make_world(task, device=device, compile=compile, seed=seed)
        self.env = TensorEnv(world)
        self.actor = ProbabilisticActor(
            TensorDictModule(
                Gaussian(task, weights).to(device),
                in_keys=["observation"],
                out_keys=["loc", "scale"],
            ),
            in_keys=["loc", "scale"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        )
        net = mlp(task.observation_size, task.hidden, 1).to(device)
        copy_linears(net, weights.critic)
        self.critic = ValueOperator(net, in_keys=["observation"])
        self.collector = Collector(
            self.env,
            self.actor,
            frames_per_batch=task.batch,
            total_frames=-1,
            device=device,
            track_traj_ids=False,
            auto_register_policy_transforms=False,
        )
        self._batches = iter(self.collector)
        self.advantage = self._estimator(average=True)
        self.loss = ClipPPOLoss(
            self.actor,
            self.critic,
            clip_epsilon=task.clip_ratio,
            entropy_coeff=task.entropy_weight,
            critic_coeff=task.value_weight,
            loss_critic_type="l2",
        )
        self.optimizer = torch.optim.Adam(
            self.loss.parameters(), lr=task.lr, eps=task.adam_eps, fused=True
        )
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(task.batch, device=device),
            sampler=SamplerWithoutReplacement(),
            batch_size=task.batch // task.minibatches,
        )
        self.data = TensorDict()
        self._numbers = TensorDict(
            {"action": torch.rand(task.lanes, task.action_size, device=device)},
            batch_size=[task.lanes],
            device=device,
        )
        self._total = torch.zeros(())

    def _estimator(self, *, average: bool) -> GAE:
        return GAE(
            gamma=self.task.discount,
            lmbda=self.task.gae_lambda,
            value_network=self.critic,
            average_gae=average,
        )

    def step_world(self) -> None:
        for _ in range(self.task.steps):
            self.env.step(self._numbers)

    def collect(self) -> None:
        self.data = next(self._batches)

    def train(self) -> None:
        self.collect()
        self._learn(self.data)

    def _learn(self, data: TensorDictBase) -> None:
        with torch.no_grad():
            self.advantage(data)
        rows = data.select(*KEPT).reshape(-1)
        self.buffer.extend(rows)
        for _ in range(self.task.epochs):
            for minibatch in self.buffer:
                losses = self.loss(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                self.optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), self.task.max_grad_norm)
                self.optimizer.step()
        self._total = total

    def _of(self, network: str) -> list[nn.Parameter]:
        return [p for name, p in self.loss.named_parameters() if name.startswith(network)]

    def reward(self) -> float:
        return float(self.data["next", "reward"].mean())

    def replay(self, stored: Stored) -> Seen:
        shape = (self.task.lanes, self.task.steps)
        following = torch.cat((stored.obs[1:], stored.last_obs.unsqueeze(0)))

        def by_lane(x: Tensor) -> Tensor:
            return x.transpose(0, 1).contiguous()

        ended = by_lane(stored.terminated).unsqueeze(-1)
        after = {
            "observation": by_lane(following),
            "reward": by_lane(stored.reward).unsqueeze(-1),
            "done": ended,
            "terminated": ended,
        }
        given = {"observation": by_lane(stored.obs), "action": by_lane(stored.action)}
        data = TensorDict(
            {**given, "next": TensorDict(after, batch_size=shape)},
            batch_size=shape,
            device=stored.obs.device,
            names=[None, "time"],
        )
        with torch.no_grad():
            law = self.actor.get_dist(data)
            data["action_log_prob"] = law.log_prob(data["action"])
            value = self.critic(data.clone())["state_value"].squeeze(-1)
            raw = self._estimator(average=False)(data.clone())["advantage"].squeeze(-1)
            flat = data.reshape(-1)
            again = self.actor.get_dist(flat).log_prob(flat["action"])
        self._learn(data)
        before = data["action_log_prob"]
        return Seen(
            log_prob=by_lane(before),
            entropy=by_lane(law.entropy()),
            value=by_lane(value),
            advantage=by_lane(raw),
            ratio=float(((again.view_as(before) - before).exp() - 1).abs().max()),
            loss=float(self._total.detach()),
            actor_grad_norm=grad_norm(self._of("actor")),
            critic_grad_norm=grad_norm(self._of("critic")),
        )
