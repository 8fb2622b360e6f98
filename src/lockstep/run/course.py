"""The order of updates and checkpoints, the same in every process of a run."""

from collections.abc import Callable

from lockstep.run.trainer import Trainer


class Course:
    """Goes through a run's updates; what an update and a checkpoint are, its heirs say.

    `saved` is the update of the checkpoint that the run starts from, -1 if there is none.
    """

    def __init__(self, trainer: Trainer, *, saved: int) -> None:
        self.trainer, self.config, self.saved = trainer, trainer.config, saved

    def follow(self, stopped: Callable[[], bool]) -> None:
        """Updates until the end, or until `stopped` says so after one of them."""
        if self.saved < 0:
            self.save()  # from here on there is something to resume from
        while self.trainer.updates < self.config.updates and not stopped():
            self.update()
            done = self.trainer.updates == self.config.updates
            if done or self.trainer.updates % self.config.checkpoint_every == 0:
                self.save()
            self.updated()
        if self.saved < self.trainer.updates:  # a stop at any point
            self.save()

    def update(self) -> None:
        """One update."""
        self.trainer.update()

    def save(self) -> None:
        """Hands this process's lanes over to the first one, which writes the checkpoint."""
        self.trainer.state_dict()
        self.saved = self.trainer.updates

    def updated(self) -> None:
        """An update is over, and so is its checkpoint."""
