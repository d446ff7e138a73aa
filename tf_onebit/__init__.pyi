"""The public names for type checkers: `__init__.py` imports them on first use only."""

from tf_onebit import callbacks as callbacks
from tf_onebit import collectives as collectives
from tf_onebit import data as data
from tf_onebit import distribute as distribute
from tf_onebit import exchanges as exchanges
from tf_onebit import horovod as horovod
from tf_onebit import model_parallel as model_parallel
from tf_onebit import optimizers as optimizers
from tf_onebit import planner as planner
from tf_onebit import transforms as transforms
from tf_onebit._training.model_optimizers import flush as flush
from tf_onebit._training.model_optimizers import without_delay as without_delay
from tf_onebit._version import __version__ as __version__
from tf_onebit.data import ResizableBatches as ResizableBatches
from tf_onebit.exchanges import Auto as Auto
from tf_onebit.exchanges import Delayed as Delayed
from tf_onebit.exchanges import Exchange as Exchange
from tf_onebit.exchanges import FullPrecision as FullPrecision
from tf_onebit.exchanges import Local as Local
from tf_onebit.exchanges import OneBit as OneBit
from tf_onebit.exchanges import Threshold as Threshold
from tf_onebit.exchanges import WarmStart as WarmStart
