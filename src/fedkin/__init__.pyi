from fedkin import algorithms as algorithms
from fedkin import couplings as couplings
from fedkin import data as data
from fedkin import diagnostics as diagnostics
from fedkin import graphs as graphs
from fedkin import models as models
from fedkin.algorithm import Algorithm as Algorithm
from fedkin.comparison import Comparison as Comparison
from fedkin.comparison import compare as compare
from fedkin.diagnostics import theory as theory
from fedkin.errors import FedkinError as FedkinError
from fedkin.federation import Federation as Federation
from fedkin.graphs import ClientGraph as ClientGraph
from fedkin.portfolio.auto import auto as auto
from fedkin.portfolio.join import join as join
from fedkin.result import Result as Result
from fedkin.result import load as load
from fedkin.result.predict import predict as predict
from fedkin.run import Callback as Callback
from fedkin.run import Options as Options
from fedkin.run import resume as resume
from fedkin.run import train as train
from fedkin.task import Task as Task
from fedkin.task.losses import loss as loss
from fedkin.task.metrics import metric as metric
from fedkin.tuning import tune as tune

__version__: str
