"""Models that this package was not made for, each with a way through it by hand; a chain whose backward lies."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from creditaudit.engine.model import ResMLP

# torchvision is imported where it is needed: collecting the tests must not wait for it


class Case:
    """A model, and how it gets from its input to the first state, from state to state, and to the logits."""

    def __init__(self, model: nn.Module, x: Tensor, stem: Callable, steps: list[Callable], readout: Callable) -> None:
        self.model, self.x, self.stem, self.steps, self.readout = model.eval(), x, stem, steps, readout
        self.y = torch.arange(len(x)) % 10

    def literal(self) -> tuple[list[list[float]], list[list[float]], float, float]:
        """Norms of states and gradients, sample by sample; largest growth of medians in a stage; accuracy."""
        h_norms, g_norms, hits = [], [], []
        for i in range(len(self.x)):
            h = [self.stem(self.x[i : i + 1])]
            for step in self.steps:
                h.append(step(h[-1]))
            logits = self.readout(h[-1])
            g = torch.autograd.grad(cross_entropy(logits, self.y[i : i + 1]), h)
            h_norms.append([state.double().norm().item() for state in h])
            g_norms.append([gradient.double().norm().item() for gradient in g])
            hits.append((logits.argmax() == self.y[i]).item())
            shapes = [state.shape for state in h]
        medians = torch.tensor(h_norms).median(0).values
        growth = max((medians[l + 1] / medians[l]).item() for l in range(len(shapes) - 1) if shapes[l] == shapes[l + 1])
        return medians.tolist(), torch.tensor(g_norms).median(0).values.tolist(), growth, sum(hits) / len(hits)


def pictures(size: int = 32) -> Tensor:
    return torch.randn(6, 3, size, size)


def chained(modules: list[nn.Module]) -> Callable:
    return nn.Sequential(*modules)


def res_mlp() -> Case:
    net = ResMLP(24, 3)
    steps = [lambda h, block=block: h + block(h) for block in net.blocks]
    return Case(net, torch.randn(6, 3072), net.embed, steps, net.readout)


def resnet18() -> Case:
    from torchvision import models

    net = models.resnet18(num_classes=10)
    stem = chained([net.conv1, net.bn1, net.relu, net.maxpool])
    steps = [block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage]
    return Case(net, pictures(64), stem, steps, lambda h: net.fc(net.avgpool(h).flatten(1)))


def mobilenet() -> Case:
    from torchvision import models

    net = models.mobilenet_v2(num_classes=10, width_mult=0.35)
    parts = list(net.features)
    readout = chained([parts[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier])
    return Case(net, pictures(), parts[0], parts[1:-1], readout.eval())


def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    net = ConvNeXt([CNBlockConfig(16, 24, 2), CNBlockConfig(24, None, 3)], num_classes=10, layer_scale=0.5)
    stem, first, down, second = net.features
    return Case(net, pictures(), stem, [*first, down, *second], chained([net.avgpool, net.classifier]))


def vision_transformer() -> Case:
    from torchvision import models

    net = models.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=10)
    nn.init.normal_(net.heads.head.weight)  # torchvision starts it at zero, where there is no gradient

    def stem(x: Tensor) -> Tensor:
        tokens = net._process_input(x)
        tokens = torch.cat([net.class_token.expand(len(x), -1, -1), tokens], 1)
        return tokens + net.encoder.pos_embedding

    return Case(net, pictures(), stem, list(net.encoder.layers), lambda h: net.heads(net.encoder.ln(h)[:, 0]))


class Layer(nn.Module):
    """As Hugging Face has it: keywords in, a tuple out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.output = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, attention_mask: Tensor | None = None, hidden_states: Tensor | None = None) -> tuple:
        h = self.norm(hidden_states)
        seen, weights = self.attend(h, h, h, key_padding_mask=attention_mask == 0)
        hidden_states = hidden_states + seen
        return hidden_states + self.output(hidden_states), weights


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(16) for _ in range(3))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        for layer in self.layer:
            hidden_states, _ = layer(attention_mask=attention_mask, hidden_states=hidden_states)
        return SimpleNamespace(last_hidden_state=hidden_states)


class ForClassification(nn.Module):
    """Takes keywords, returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.classifier = nn.Embedding(50, 16), Encoder(), nn.Linear(16, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None):
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        last = self.encoder(self.embeddings(input_ids), attention_mask=attention_mask).last_hidden_state
        loss = None if labels is None else cross_entropy(self.classifier(last[:, 0]), labels)
        return SimpleNamespace(loss=loss, logits=self.classifier(last[:, 0]), hidden_states=None)


def hugging_face() -> Case:
    net = ForClassification()
    whole = torch.ones(1, 7).long()
    steps = [lambda h, layer=layer: layer(whole, h)[0] for layer in net.encoder.layer]
    return Case(net, torch.randint(0, 50, (6, 7)), net.embeddings, steps, lambda h: net.classifier(h[:, 0]))


def plain_mlp() -> Case:
    net = nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.ReLU(), *hidden(16), *hidden(16), nn.Linear(16, 10))
    return Case(net, torch.randn(6, 4, 5), net[:3], [net[3:5], net[5:7]], net[7])


def hidden(width: int) -> list[nn.Module]:
    return [nn.Linear(width, width), nn.ReLU()]


class Functional(nn.Module):
    """An MLP with the activations in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.fc4 = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc4(relu(self.fc3(relu(self.fc2(relu(self.fc1(x))))))).narrow(1, 0, 10)


def functional_mlp() -> Case:
    net = Functional()
    steps = [lambda h: relu(net.fc2(h)), lambda h: relu(net.fc3(h))]
    return Case(net, torch.randn(6, 12), lambda x: relu(net.fc1(x)), steps, lambda h: net.fc4(h).narrow(1, 0, 10))


class Stack(nn.Module):
    """Blocks of one class one after the other, and a readout straight from the last state: no terminal norm."""

    def __init__(self, blocks: list[nn.Module], width: int = 16) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(20, width), nn.ModuleList(blocks), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.body(h)


def stacked(blocks: list[nn.Module]) -> Case:
    net = Stack(blocks)
    return Case(net, torch.randn(6, 20), net.embed, list(net.blocks), net.head)


def no_terminal_norm() -> Case:
    return stacked([Skip() for _ in range(3)])


def shared_blocks() -> Case:
    return stacked([Skip()] * 3)


class PostNorm(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(super().forward(h))


def post_norm() -> Case:
    return stacked([PostNorm() for _ in range(3)])


def vgg() -> Case:
    from torchvision import models

    net = models.VGG(models.vgg.make_layers([8, 8, 8, "M", 12, 12, "M"]), num_classes=10, init_weights=False)
    net.avgpool, net.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 10)
    f = list(net.features)
    last = chained([*f[9:], net.avgpool, nn.Flatten()])
    steps = [chained(f[2:4]), chained(f[4:7]), chained(f[7:9]), last]
    return Case(net, pictures(16), chained(f[:2]), steps, net.classifier)


CASES = [
    res_mlp,
    resnet18,
    mobilenet,
    convnext,
    vision_transformer,
    hugging_face,
    plain_mlp,
    functional_mlp,
    no_terminal_norm,
    shared_blocks,
    post_norm,
    vgg,
]


def made(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    case = make()
    for parameter in case.model.parameters():  # no zeros that hide an error
        parameter.data += 0.02 * torch.randn_like(parameter)
    return case


class Feedback(torch.autograd.Function):
    """A linear map whose backward goes through another matrix: what libraries for feedback alignment do."""

    @staticmethod
    def forward(context, x, weight, bias, feedback):
        context.save_for_backward(x, feedback)
        return x @ weight.T + bias

    @staticmethod
    def backward(context, sent):
        x, feedback = context.saved_tensors
        return sent @ feedback, sent.T @ x, sent.sum(0), None


class FALinear(nn.Linear):
    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving)
        self.register_buffer("feedback", torch.randn(leaving, entering) / math.sqrt(entering))

    def forward(self, x: Tensor) -> Tensor:
        return Feedback.apply(x, self.weight, self.bias, self.feedback)


def mlp(linear: type[nn.Linear], head: type[nn.Linear]) -> nn.Sequential:
    layers = [linear(20, 64), nn.ReLU(), linear(64, 64), nn.ReLU(), linear(64, 64), nn.ReLU(), head(64, 10)]
    return nn.Sequential(*layers)


def plain_twin(net: nn.Sequential) -> nn.Sequential:
    """The same function with torch's own backward."""
    twin = mlp(nn.Linear, nn.Linear)
    twin.load_state_dict({name: net.state_dict()[name] for name in twin.state_dict()})
    return twin
