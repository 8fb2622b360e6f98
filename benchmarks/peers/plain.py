"""PPO as one loop on tensors, in the manner of CleanRL's scripts, written for this comparison."""

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.peers.task import Seen, Stored, Task, Weights, copy_linears, grad_norm, mlp
from benchmarks.peers.world import make_world


class Plain:
    """Preallocated storage, one Adam for both networks, minibatches of shuffled rows."""

    name = "plain loop"

    def __init__(
        self,
        task: Task,
        weights: Weights,
        *,
        device: str = "cpu",
        compile: bool = False,
        seed: int = 0,
        unbiased: bool = False,
    ) -> None:
        self.task, self.unbiased = task, unbiased
        torch.manual_seed(seed)
        self.world = make_world(task, device=device, compile=compile, seed=seed)
        D, U = task.observation_size, task.action_size
        self.actor = mlp(D, task.hidden, U).to(device)
        self.critic = mlp(D, task.hidden, 1).to(device)
        copy_linears(self.actor, weights.actor)
        copy_linears(self.critic, weights.critic)
        self.log_std = nn.Parameter(weights.log_std.clone().to(device))
        self.parameters = [*self.actor.parameters(), self.log_std, *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=task.lr, eps=task.adam_eps, fused=True
        )
        T, L = task.steps, task.lanes
        self.obs = torch.zeros(T, L, D, device=device)
        self.action = torch.zeros(T, L, U, device=device)
        self.log_prob, self.value, self.rewards = torch.zeros(3, T, L, device=device).unbind()
        self.terminated = torch.zeros(T, L, dtype=torch.bool, device=device)
        self.next_obs = self.world.seen()
        self._numbers = torch.rand(L, U, device=device)
        self._ratio = torch.zeros(())
        self._loss = torch.zeros(())

    def _law(self, obs: Tensor) -> Normal:
        return Normal(self.actor(obs), self.log_std.exp(), validate_args=False)

    def step_world(self) -> None:
        for _ in range(self.task.steps):
            self.world.play(self._numbers)

    @torch.no_grad()
    def collect(self) -> None:
        for t in range(self.task.steps):
            self.obs[t] = self.next_obs
            law = self._law(self.next_obs)
            self.action[t] = law.sample()
            self.log_prob[t] = law.log_prob(self.action[t]).sum(dim=-1)
            self.value[t] = self.critic(self.next_obs).squeeze(-1)
            self.next_obs, self.rewards[t], self.terminated[t] = self.world.play(self.action[t])

    def train(self) -> None:
        self.collect()
        self._learn()

    def _learn(self) -> None:
        task = self.task
        advantage = self._advantages()
        target = (advantage + self.value).flatten()
        deviation = advantage.std(correction=1 if self.unbiased else 0)
        standard = ((advantage - advantage.mean()) / (deviation + 1e-8)).flatten()
        obs, action = self.obs.flatten(0, 1), self.action.flatten(0, 1)
        log_prob = self.log_prob.flatten()
        for _ in range(task.epochs):
            order = torch.randperm(task.batch, device=obs.device)
            for rows in order.chunk(task.minibatches):
                self._step(obs[rows], action[rows], log_prob[rows], standard[rows], target[rows])

    @torch.no_grad()
    def _advantages(self) -> Tensor:
        """Generalised advantage estimates `[T, L]`."""
        task = self.task
        alive = (~self.terminated).float()
        last = self.critic(self.next_obs).squeeze(-1)
        following = torch.cat((self.value[1:], last.unsqueeze(0)))
        delta = self.rewards + task.discount * alive * following - self.value
        advantage = torch.zeros_like(delta)
        running = torch.zeros_like(last)
        for t in reversed(range(task.steps)):
            running = delta[t] + task.discount * task.gae_lambda * alive[t] * running
            advantage[t] = running
        return advantage

    def _step(
        self, obs: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, target: Tensor
    ) -> None:
        task, law = self.task, self._law(obs)
        ratio = (law.log_prob(action).sum(dim=-1) - log_prob).exp()
        clipped = ratio.clamp(1 - task.clip_ratio, 1 + task.clip_ratio)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = law.entropy().sum(dim=-1).mean()
        miss = (self.critic(obs).squeeze(-1) - target).square().mean()
        loss = task.value_weight * miss - surrogate - task.entropy_weight * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, task.max_grad_norm)
        self.optimizer.step()
        self._ratio, self._loss = ratio.detach(), loss.detach()

    def reward(self) -> float:
        return float(self.rewards.mean())

    def replay(self, stored: Stored) -> Seen:
        with torch.no_grad():
            self.obs.copy_(stored.obs)
            self.action.copy_(stored.action)
            self.rewards.copy_(stored.reward)
            self.terminated.copy_(stored.terminated)
            self.next_obs = stored.last_obs
            for t in range(self.task.steps):  # in the shapes in which acting computes
                law = self._law(self.obs[t])
                self.log_prob[t] = law.log_prob(self.action[t]).sum(dim=-1)
                self.value[t] = self.critic(self.obs[t]).squeeze(-1)
            entropy = self._law(self.obs).entropy().sum(dim=-1)
        advantage = self._advantages()
        self._learn()
        return Seen(
            log_prob=self.log_prob,
            entropy=entropy,
            value=self.value,
            advantage=advantage,
            ratio=float((self._ratio - 1).abs().max()),
            loss=float(self._loss),
            actor_grad_norm=grad_norm([*self.actor.parameters(), self.log_std]),
            critic_grad_norm=grad_norm(self.critic.parameters()),
        )
