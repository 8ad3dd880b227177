//! Work on a stack of its own, which can be left half-way and taken up again.
//!
//! Lua's own coroutines do not do: in Lua 5.1 nothing can yield from within `pcall`, a comparison of `table.sort` or a
//! metamethod, and a script that never ends can sit in any of them.
#![expect(unsafe_code, reason = "a stack may move to another thread only with an argument")]

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Bytes of a stack. Only what is used takes memory. Limits on nested calls and values keep well below.
const STACK_BYTES: usize = 4 << 20;

/// Work that can pause.
pub struct Task<R>(Coroutine<(), (), R, DefaultStack>);

// SAFETY: what work brings along and what comes of it can move (`Task::new` asks for it). What it makes on its stack
// and keeps over a pause moves with the stack, which nothing else points into; it must not belong to a thread. Pauses
// are made by hosts of scripts, in `Host::call` and `Host::tick`, and between values that are copied. Below them are
// frames of Lua, which knows no threads, and of the engine and the host, which hold no lock and no borrow of a
// thread-local there: those of this program are borrowed for one call that does not pause.
unsafe impl<R: Send> Send for Task<R> {}

/// The way out of running work. See [`Pause::pause`].
pub struct Pause<'a>(&'a Yielder<(), ()>);

impl Pause<'_> {
    /// Leaves the work where it is; comes back with the next [`Task::resume`].
    pub fn pause(&self) {
        self.0.suspend(());
    }
}

impl<R: Send + 'static> Task<R> {
    /// Work that has not begun. Once begun it must be resumed to its end: dropping it half-way would leak what it
    /// holds. It may go on on another thread than before, so it must keep nothing over a pause that belongs to one.
    ///
    /// # Panics
    /// If there is no memory for a stack.
    pub fn new(work: impl FnOnce(&Pause<'_>) -> R + Send + 'static) -> Self {
        let stack = DefaultStack::new(STACK_BYTES).expect("no memory for a stack");
        Self(Coroutine::with_stack(stack, move |yielder, ()| work(&Pause(yielder))))
    }

    /// Goes on until the next pause, or to the end: then there is a result, and it must not be resumed again.
    pub fn resume(&mut self) -> Option<R> {
        match self.0.resume(()) {
            CoroutineResult::Yield(()) => None,
            CoroutineResult::Return(result) => Some(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_pauses_and_goes_on_where_it_was() {
        let mut task = Task::new(|pause| {
            let mut sum = 0;
            for step in 1..=3 {
                sum += step;
                pause.pause();
            }
            sum
        });
        assert_eq!([task.resume(), task.resume(), task.resume()], [None; 3]);
        assert_eq!(task.resume(), Some(6));
    }
}
